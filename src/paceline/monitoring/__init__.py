"""How is a run? What its log says, as tables, series, metrics, alerts and a score; live and replayed."""
