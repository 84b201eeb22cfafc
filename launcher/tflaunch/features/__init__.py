"""The features of tflaunch: each folder can be deleted (`tflaunch.feature`)."""
