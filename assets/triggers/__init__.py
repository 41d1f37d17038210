"""What starts runs of the graph: jobs, schedules and sensors, and the work at night that makes no asset."""
