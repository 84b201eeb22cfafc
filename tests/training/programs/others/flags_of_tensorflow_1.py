"""A program of TensorFlow 1's time: the cluster and its own place in it are flags, and both are required."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--worker_hosts", required=True)
parser.add_argument("--job_name", choices=["ps", "worker"], required=True)
parser.add_argument("--task_index", type=int, required=True)
args = parser.parse_args()
hosts = args.worker_hosts.split(",")
print(f"{args.job_name} {args.task_index} of {len(hosts)} is {hosts[args.task_index]}", flush=True)
