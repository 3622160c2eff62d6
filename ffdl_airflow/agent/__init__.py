"""The program that runs in every replica. Standard library only, Python 3.8 or newer.

Others import from here :mod:`protocol`, what both sides agree on, :mod:`detached`, how a process is
started that outlives its driver, and :mod:`bundle`, which packs the program into one file.
"""
