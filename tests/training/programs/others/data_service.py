"""The servers of a tf.data service, as an operator's image runs them: what and where come from the command line.

data_service.py dispatcher|worker ADDRESS_OF_THE_DISPATCHER
"""

import sys

import tensorflow as tf

service = tf.data.experimental.service
kind, address = sys.argv[1:]
if kind == "dispatcher":
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=int(address.rpartition(":")[2])))
    print("dispatching at", dispatcher.target, flush=True)
    dispatcher.join()
else:
    worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    print("reading for", address, flush=True)
    worker.join()
