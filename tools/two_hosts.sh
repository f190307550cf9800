#!/bin/bash
# Two ranks in two network namespaces that see each other over a virtual cable: the least that is not localhost. Needs no
# root where user namespaces are allowed, and ip (iproute2). By hand: tools/two_hosts.sh build/cpu/src/app/nibble
set -euo pipefail
nibble=$(realpath "${1:?want the path of nibble}")
cd "$(dirname "$0")/.."
[ -n "${TWO_HOSTS_INSIDE:-}" ] || TWO_HOSTS_INSIDE=1 exec unshare --user --map-root-user --net "$0" "$nibble"

unshare --net sleep 1000 &
other=$!
trap 'kill $other' EXIT
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add here type veth peer name there netns $other
ip address add 10.9.0.1/24 dev here
ip link set here up
nsenter --net=/proc/$other/ns/net sh -c 'ip address add 10.9.0.2/24 dev there && ip link set there up'

run() { "$nibble" run models/nibble-tiny -p "Once upon a time" -n 24 --temperature 0 --moe-activation f32 "${@}"; }
group() { run --nnodes 2 --master-addr 10.9.0.1 --node-rank "$1"; }
export nibble
export -f run group
nsenter --net=/proc/$other/ns/net bash -c 'group 1' &
follower=$!
together=$(group 0)
wait $follower
alone=$(run -q)
[ "$together" == "$alone" ] && echo "two namespaces write the text of one process: $alone"
