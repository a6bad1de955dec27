#!/bin/sh
# when_ready.sh FOLDER COMMAND...: runs the command once the file `ready` is in the folder.
folder=$1
shift
until [ -e "$folder/ready" ]; do sleep 0.05; done
exec "$@"
