"""Features on Ray: the section of a spec, the cluster, and the tasks that run there."""
