"""``python -m pipeplan.cli``, for an environment without ``pipeplan`` on the path."""

import sys

from pipeplan.cli.main import main

sys.exit(main())
