# A path through the parts of a network: each is judged against the champion of the moment.
RUN="--executor local --tracker none"
ablate campaign open parts.yaml $RUN
for part in mlp value; do
  ablate judge parts --part "$part" --note "without $part" $RUN
done
ablate campaign list parts
