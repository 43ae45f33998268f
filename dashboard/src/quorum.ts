// What would a cut leave of the quorum? Pure.

import type { Coordinator } from "./types";

/** What is left of the quorum, in words. */
export function quorum(found: Coordinator, names: string[]): string {
  const voters = found.voters ?? found.nodes.length, needed = Math.floor(voters / 2) + 1;
  if (!names.some((name) => name.startsWith("node-"))) return "The coordinator stays as it is.";
  const left = found.nodes.filter((node) => node.node !== null && !names.includes(`node-${node.node}`)).length;
  return left >= needed ? `The quorum stays: ${left} of ${voters}.` : `This loses the quorum (${left} of ${voters}), so it will be refused.`;
}
