"""Skills and slash commands for coding agents, and their installation (`paceline skills`).

`bundled/` holds the texts: folders in the Agent Skills format, and one Markdown file for each slash command.
See docs/guides/agent-skills.md and docs/decisions/0065-agent-skills.md.
"""
