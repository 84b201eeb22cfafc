"""The features of tflaunch, a room each: a folder that can be deleted to take the feature out (`tflaunch.rooms`)."""
