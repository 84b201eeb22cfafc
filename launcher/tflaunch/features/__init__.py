"""The features of tflaunch: each is a folder that can be deleted to take it out (`tflaunch.feature`)."""
