"""`python -m shoal` is `shoal`."""

from shoal.cli.main import main

if __name__ == "__main__":
    main()
