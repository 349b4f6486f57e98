"""``python -m pipeplan.cli``, where no ``pipeplan`` is on the path."""

import sys

from pipeplan.cli.main import main

sys.exit(main())
