"""A program with argparse: flags with = and without, negative numbers, empty words, and what follows --."""

import argparse
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--shift", type=int)
parser.add_argument("--name")
parser.add_argument("--tag", action="append", default=[])
parser.add_argument("rest", nargs="*")
args = parser.parse_args()
print(json.dumps({**vars(args), "cwd": os.path.basename(os.getcwd())}), flush=True)
