// Effect of a partition on the coordinator's quorum. Pure.

import type { Coordinator } from "./types";

export function describeQuorum(coordinator: Coordinator, isolated: string[]): string {
  const voters = coordinator.voters ?? coordinator.nodes.length;
  const majority = Math.floor(voters / 2) + 1;
  if (!isolated.some((name) => name.startsWith("node-"))) return "The quorum is not affected.";
  const remaining = coordinator.nodes.filter((node) => {
    return node.node !== null && !isolated.includes(`node-${node.node}`);
  });
  if (remaining.length >= majority) return `The quorum remains: ${remaining.length} of ${voters} nodes.`;
  return `The quorum would be lost (${remaining.length} of ${voters} nodes), so the request will be refused.`;
}
