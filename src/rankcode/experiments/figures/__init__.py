"""The paper's figures and tables, one module each."""
