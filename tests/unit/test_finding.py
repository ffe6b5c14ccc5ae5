from pathlib import Path

import pytest
from tests.house import CLI, ME, TELEGRAM, House, opened

from everthread.domain.boundary import Branch, New
from everthread.domain.errors import Ambiguous, BadInput, NoSuchSession, NotFound, TitleTaken
from everthread.domain.model import NoteAction, NoteTarget
from everthread.lifecycle import ForgetSession, NoteChange
from everthread.lifecycle.finding import find_session, find_session_of_any_owner


class Found:
    """Looks sessions up as a person would."""

    def __init__(self, house: House) -> None:
        self.house = house

    async def __call__(self, text: str, owner: str = ME) -> str:
        return (await self.house.store.read(lambda uow: find_session(uow, text, owner=owner))).id


async def new(house: House, title: str, *, owner: str = ME) -> str:
    return opened(await house.cross(CLI, New(title), owner=owner))


async def branched(house: House) -> str:
    return opened(await house.cross(CLI, Branch()))


async def compressed(house: House) -> str:
    await house.turn(CLI, "said")
    return opened(await house.cross(CLI, await house.compression(CLI)))


async def test_a_session_is_found_by_its_id_and_by_the_beginning_of_it(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, first = Found(house), await new(house, "")
        assert await found(first) == first
        assert await found(first[:-1]) == first


async def test_a_beginning_that_fits_several_is_refused_with_some_of_them(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, ids = Found(house), [await new(house, "") for _ in range(2)]
        with pytest.raises(BadInput, match=f"fits 2 sessions, among them {ids[0]}, {ids[1]}"):
            await found(house.holder)


async def test_too_short_a_beginning_finds_nothing(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "")
        with pytest.raises(NotFound):
            await Found(house)(house.holder[:3])


@pytest.mark.parametrize("text", ["", "  ", "nothing of the kind", "\u200b", "x" * 5000, "'; DROP TABLE sessions"])
async def test_what_names_nothing_is_not_found_and_says_where_to_look(tmp_path: Path, text: str) -> None:
    async with House(tmp_path) as house:
        await new(house, "My Project")
        with pytest.raises(NotFound, match="sessions list") as caught:
            await Found(house)(text)
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize("text", ["My Project", "my project", "  MY   PROJECT ", "my\u200b project", "\uff4dy project"])
async def test_a_title_is_found_however_it_is_written(tmp_path: Path, text: str) -> None:
    async with House(tmp_path) as house:
        first = await new(house, "My Project")
        assert await Found(house)(text) == first


async def test_a_bare_name_finds_the_newest_and_a_number_that_very_one(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, first = Found(house), await new(house, "name")
        second, third = await branched(house), await branched(house)
        assert await found("name") == third
        assert await found("name #2") == second
        assert await found("name #3") == third
        assert first not in (second, third)
        with pytest.raises(NotFound):
            await found("name #4")


async def test_ten_is_newer_than_nine(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "name")
        newest = [await branched(house) for _ in range(10)][-1]
        assert (await house.session(newest)).title == "name #11"
        assert await Found(house)("name") == newest


async def test_a_title_finds_the_tip_of_its_continuation(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "name")
        tip = await compressed(house)
        assert await Found(house)("name") == tip
        await house.lifecycle.rename(tip, "something else", owner=ME)
        # The old name still leads to where the conversation goes on.
        assert await Found(house)("name") == tip


async def test_a_longer_name_with_the_same_beginning_is_another_name(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        first = await new(house, "name")
        await new(house, "name of the rose")
        assert await Found(house)("name") == first


async def test_a_title_that_looks_like_a_number_is_a_name(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, hash_one = Found(house), await new(house, "name #1")
        with pytest.raises(NotFound):
            await found("name")
        assert await found("name #1") == hash_one


async def test_a_title_of_a_hundred_characters_branched_twice_is_found_by_its_name(tmp_path: Path) -> None:
    name = "n" * 96 + "abcd"
    async with House(tmp_path) as house:
        found, first = Found(house), await new(house, name)
        second, third = await branched(house), await branched(house)
        titles = [(await house.session(session)).title for session in (first, second, third)]
        assert titles == [name, "n" * 96 + "a #2", "n" * 96 + "a #3"]
        assert await found(name) == third
        assert await found(titles[1] or "") == second
        for _ in range(8):
            newest = await branched(house)
        assert (await house.session(newest)).title == "n" * 96 + " #11"
        assert await found(name) == newest


async def test_somebody_elses_session_is_not_found_by_any_name(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, theirs = Found(house), await new(house, "secret", owner="you")
        for text in (theirs, theirs[:-1], "secret"):
            with pytest.raises(NotFound) as mine:
                await found(text)
            with pytest.raises(NotFound) as nobodys:
                await found("x" * len(text))
            # Not even by how it is refused.
            assert str(mine.value).replace(text, "") == str(nobodys.value).replace("x" * len(text), "")
        assert await found("secret", "you") == theirs


async def test_two_owners_may_use_the_same_title(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        mine, theirs = await new(house, "plans"), await new(house, "plans", owner="you")
        assert await Found(house)("plans") == mine
        assert await Found(house)("plans", "you") == theirs


async def test_a_forgotten_session_is_not_found(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        found, first = Found(house), await new(house, "secret plans")
        await house.lifecycle.forget(ForgetSession(first), owner=ME)
        for text in (first, first[:-1], "secret plans"):
            with pytest.raises(NotFound):
                await found(text)


async def test_a_session_whose_continuation_was_forgotten_is_where_it_was(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        first = await new(house, "name")
        await house.lifecycle.forget(ForgetSession(await compressed(house)), owner=ME)
        assert await Found(house)("name") == first


async def test_the_desk_for_notes_is_no_conversation_to_go_to(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        note = NoteChange(NoteAction.ADD, NoteTarget.USER, "likes tea")
        version = await house.lifecycle.write_note(note, owner=ME)
        with pytest.raises(NotFound):
            await Found(house)(version.session_id)


async def test_a_title_is_one_sessions_only(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        first, second = await new(house, "plans"), await new(house, "other")
        with pytest.raises(TitleTaken):
            await house.lifecycle.rename(second, "PLANS", owner=ME)
        assert await house.lifecycle.rename(first, "Plans", owner=ME) == "Plans"
        with pytest.raises(NotFound):
            await house.lifecycle.rename(first, "mine now", owner="you")
        assert (await house.session(first)).title == "Plans"


async def test_keys_of_one_owner_share_the_titles(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "plans")
        with pytest.raises(TitleTaken):
            await house.cross(TELEGRAM, New("plans"))


@pytest.mark.parametrize("text", ["My Projct", "my projetc", "project", "MY PROJECTS", "my"])
async def test_what_is_nearly_a_title_is_answered_with_the_title(tmp_path: Path, text: str) -> None:
    async with House(tmp_path) as house:
        await new(house, "Groceries")
        first = await new(house, "My Project")
        await new(house, "My Project of somebody else", owner="you")
        with pytest.raises(NoSuchSession, match=r"did you mean 'My Project'\? `sessions list`") as caught:
            await Found(house)(text)
        assert caught.value.near == ((first, "My Project"),)


async def test_a_word_of_a_long_title_is_answered_with_the_title(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "What to plant in the garden behind the house")
        with pytest.raises(NoSuchSession, match="did you mean 'What to plant"):
            await Found(house)("GARDEN")
        with pytest.raises(NoSuchSession) as caught:
            await Found(house)("the")
        assert caught.value.near == ()


async def test_the_nearest_titles_are_few_and_the_most_alike_is_first(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        for title in ("Trip to Lima", "Trip to Lisbon", "Trip to Lissabon", "Trip to London", "Trip to Lodz"):
            await new(house, title)
        with pytest.raises(NoSuchSession) as caught:
            await Found(house)("Trip to Lisbonn")
        assert [title for _, title in caught.value.near][0] == "Trip to Lisbon"
        assert len(caught.value.near) == 3


async def test_what_was_forgotten_or_goes_on_elsewhere_is_not_offered(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await house.lifecycle.forget(ForgetSession(await new(house, "secret plans")), owner=ME)
        await new(house, "the garden")
        tip = await compressed(house)
        for text, near in (("secret plan", ()), ("the gardn", ((tip, "the garden #2"),))):
            with pytest.raises(NoSuchSession) as caught:
                await Found(house)(text)
            assert caught.value.near == near


async def test_a_beginning_that_fits_several_names_their_titles(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        one, two = await new(house, "Lisbon"), await new(house, "")
        with pytest.raises(Ambiguous, match=rf"among them {one} \('Lisbon'\), {two};") as caught:
            await Found(house)(house.holder)
        assert caught.value.fitting == ((one, "Lisbon"), (two, ""))


async def test_an_operator_is_offered_the_nearest_of_anybody(tmp_path: Path) -> None:
    async with House(tmp_path) as house:
        await new(house, "Lisbon", owner="you")
        with pytest.raises(NoSuchSession, match="did you mean 'Lisbon'"):
            await house.store.read(lambda uow: find_session_of_any_owner(uow, "Lisbn"))
