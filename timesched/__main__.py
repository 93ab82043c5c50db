"""The command line: `python -m timesched`."""

from timesched.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
