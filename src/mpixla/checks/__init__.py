"""Reporting and process exit: call sites, time limits, timelines, aborting the job."""
