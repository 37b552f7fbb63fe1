"""Which traffic rendered network policies let through, computed as Kubernetes defines it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.charts.rendering import NAMESPACE, Object, of_kind

Labels = dict[str, str]


@dataclass(frozen=True)
class End:
    """A pod in a namespace, by its labels, with the address that `ipBlock` peers see."""

    labels: Labels = field(default_factory=dict)
    namespace: str = NAMESPACE
    address: str = "10.2.0.9"


def selects(selector: Object, labels: Labels) -> bool:
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def matches(peer: Object, end: End) -> bool:
    """Selectors of namespace and pod in one peer are both to fit; without one of the namespace it is the policy's own."""
    if "ipBlock" in peer:
        block, address = peer["ipBlock"], ipaddress.ip_address(end.address)
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(part) for part in block.get("except", []))
    if "namespaceSelector" in peer:
        near = selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": end.namespace})
    else:
        near = end.namespace == NAMESPACE
    return near and selects(peer.get("podSelector", {}), end.labels)


def passes(objects: list[Object], direction: str, pod: End, other: End, port: int, protocol: str = "TCP") -> bool:
    """Whether `pod` may send to (Egress) or receive from (Ingress) `other`. Policies hold in their namespace alone."""
    if pod.namespace != NAMESPACE:
        return True
    return admits(objects, direction, pod.labels, lambda peer: matches(peer, other), port, protocol)


def admits(objects: list[Object], direction: str, pod: Labels, reaches: Callable[[Object], bool], port: int, protocol: str = "TCP") -> bool:
    """Whether the policies of a pod with these labels let it send to (Egress) or receive from (Ingress) the one that `reaches` knows in a
    peer."""
    policies = [p["spec"] for p in of_kind(objects, "NetworkPolicy") if selects(p["spec"]["podSelector"], pod)]
    policies = [policy for policy in policies if direction in policy["policyTypes"]]
    if not policies:
        return True
    side = "from" if direction == "Ingress" else "to"
    rules: list[dict[str, Any]] = [rule for policy in policies for rule in policy.get(direction.lower(), [])]
    return any(
        (side not in rule or any(reaches(peer) for peer in rule[side]))
        and ("ports" not in rule or any(p["port"] == port and p.get("protocol", "TCP") == protocol for p in rule["ports"]))
        for rule in rules
    )


def leaves(objects: list[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    return passes(objects, "Egress", source, target, port, protocol)


def arrives(objects: list[Object], source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    return passes(objects, "Ingress", target, source, port, protocol)
