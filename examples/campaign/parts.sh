# A path through the parts of a network: each is judged against the champion of the moment.
ablate campaign open parts.yaml --executor local
for part in mlp value; do
  ablate judge parts --part "$part" --note "without $part" --executor local
done
ablate campaign list parts
