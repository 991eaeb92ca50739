# Takes a node container away with its volumes, if it is there.   CONTAINER
! docker container inspect "$CONTAINER" >/dev/null 2>&1 || docker rm --force --volumes "$CONTAINER" >/dev/null
