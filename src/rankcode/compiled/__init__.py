"""One layer of LSTM or GRU on a CPU, in C: `recurrence.c`, compiled when rankcode is installed.

`library.py` loads it, `layer.py` reads rows with it and computes the gradients of the weights, and `sequence.py` reads
whole sequences. Without a C compiler PyTorch's own layers are used instead.
"""
