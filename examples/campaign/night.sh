# An agent at night, by hand: a change is kept (exit code 0), discarded (3) or not decided (4).
RUN="--executor local --tracker none"
set -u
ablate campaign open night.yaml $RUN
ablate judge night --set config.lr=0.01 --note "a higher rate" $RUN
test $? -eq 3 || exit 1
ablate judge night --set config.lr=0.003 --note "a rate between them" $RUN || exit 1
ablate campaign status night
ablate campaign close night $RUN
