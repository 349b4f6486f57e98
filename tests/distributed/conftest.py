"""What every test here needs: ranks import the workers of this folder by the names that the tests have for them."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # more ranks are started than most machines have GPUs
