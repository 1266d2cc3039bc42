"""In-stream analytics to look at: made-up traffic, a pipeline over it, a page of charts, and how well it did.

A face like any other, above Spark's pipelines and the tables, and an example of both: `analytics/` and `archive/` are
pipelines as anybody writes them. Start reading there; `world` and `traffic` say what happens, `generator` sends it,
`detector` finds what is unusual (with `baselines` and `episodes`; pure), `watching` runs it inside Spark, `scoring` and
`rehearsal` say how well it does, `dashboard` is the page, `running` the whole.
"""
