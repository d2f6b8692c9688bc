"""What bench/run.py is made of: programs, rows, machine, table."""
