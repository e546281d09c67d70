"""The graph of a program: plain data that can be stored, sent, checked, drawn and run."""
