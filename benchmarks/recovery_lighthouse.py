"""torchft's lighthouse, as its own command starts it, under the interpreter that recovery.py was given."""

from torchft._torchft import lighthouse_main

lighthouse_main()
