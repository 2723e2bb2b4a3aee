"""Each KV head keeps as many positions as a file of budgets gives it."""
