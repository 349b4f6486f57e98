"""Domain objects: model, cluster, job, schedule, pipeline, plan, timeline, and the checks of each."""
