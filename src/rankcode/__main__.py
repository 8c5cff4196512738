"""`python -m rankcode` is `rankcode`."""

from rankcode.cli.main import main

if __name__ == "__main__":
    main()
