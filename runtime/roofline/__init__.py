"""The arithmetic of decoding: what a model can do on a device, before the run (planner) and
during it (gauge).

`cost` holds every formula, over the records in `records`; nothing else in the project repeats one.
"""
