"""What tests share: commands, hosts, fakes and checks."""
