"""Checks the options of a measurement."""

from snapexport.errors import UserError, flag_of, require_at_least


def require(options: object, **least: int | None) -> None:
    """Raise UserError for a number below its least value, or an empty or repeating list.

    None passes: it is chosen later. A bound of None allows every value.
    """
    for name, bound in least.items():
        given, flag = getattr(options, name), flag_of(name)
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        if given == ():
            raise UserError(f"{flag} is empty", "give one or more, or leave it out")
        for value in values:
            if bound is not None:
                require_at_least(flag, value, bound)
            if values.count(value) > 1:
                raise UserError(f"{flag} has {value} twice", "give it once")
