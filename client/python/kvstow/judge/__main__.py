import sys

from kvstow.judge import main

sys.exit(main())
