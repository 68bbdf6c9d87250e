import sys

from kvstow.calibrate import main

sys.exit(main())
