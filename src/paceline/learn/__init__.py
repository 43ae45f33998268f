"""What is a learner asked, and was it seen? Pure: facts in, findings out. The text: docs/learn/index.md."""
