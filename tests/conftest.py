"""What all tests share."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "meshtwin",
    deadline=None,  # a busy machine must not fail a test
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("meshtwin")
