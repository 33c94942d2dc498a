# An agent at night, by hand: a change is kept (exit code 0), discarded (3) or not decided (4).
set -u
ablate campaign open night.yaml --executor local
ablate judge night --set config.lr=0.01 --note "a higher rate" --executor local
test $? -eq 3 || exit 1
ablate judge night --set config.lr=0.003 --note "a rate between them" --executor local || exit 1
ablate campaign status night
ablate campaign close night --executor local
