"""What is pushed to a device and runs there: standard library and numpy, Python 3.8, imports nothing of edgekit.

Every `.py` file of this folder except this one goes to the device, side by side; `runner.py` is the program.
"""
