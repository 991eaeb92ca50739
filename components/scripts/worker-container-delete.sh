# Takes a node container away with its volumes, if it is there. Docker being away
# is not the container being away.   CONTAINER
id=$(docker ps --all --quiet --filter "name=^$CONTAINER\$")
[ -z "$id" ] || docker rm --force --volumes "$id" >/dev/null
