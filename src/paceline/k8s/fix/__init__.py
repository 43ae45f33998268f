"""What would mend a cluster, who may do it, and what is done? Pure: findings in, actions out."""
