"""The training program: what it makes is true, seeded, and what the checkpoint's own code makes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor

from toy_model import configs, write
from training import digits, evaluate, example, fit, measure, mel, scenes, sounds, voices
from training.batches import Batch, Collector, as_patches
from training.export import write_weights
from training.learner import Learner
from training.model import ToyModel
from training.pool import Pool
from training.streams import STREAMS, Chunks
from training.supply import Supply
from training.tasks import KINDS, MARKS, Task, Tasks


def clips() -> list[voices.Spoken]:
    """Stand-ins for speech: noise of half a second for every word and sentence."""
    rng = np.random.default_rng(0)
    said = [*voices.WORDS, *voices.SENTENCES]
    return [
        voices.Spoken(rng.integers(-9000, 9000, 8000).astype(np.int16), one, "en", 150, 50) for one in said
    ]


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write.ensure(tmp_path_factory.mktemp("toy") / "checkpoint")
    return AutoProcessor.from_pretrained(folder, trust_remote_code=True)


# What is true of the data


def test_a_scene_is_where_its_sentence_says() -> None:
    """One shape's centre lies in the ninth that is named; of two, the first is left of or above the other."""
    rng = np.random.default_rng(1)
    for _ in range(300):
        size = scenes.random_size(rng, (1, 9))
        one = scenes.random_scene(rng, size, 1)
        x, y = (at / length for at, length in zip(one.things[0].centre, size, strict=True))
        assert one.sentence.endswith(scenes.PLACES[int(y * 3) * 3 + int(x * 3)])
        two = scenes.random_scene(rng, size, 2)
        first, second = (thing.centre for thing in two.things)
        axis = 0 if " left of " in two.sentence else 1
        assert second[axis] - first[axis] > 2 * abs(second[1 - axis] - first[1 - axis])


def test_a_drawn_shape_has_its_colour_and_nothing_else_is_drawn() -> None:
    """At a shape's middle lies its colour (a ring's is the paper), at the corners lies the paper."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        scene = scenes.random_scene(rng, scenes.random_size(rng, (1, 4)), 1)
        image, (thing,) = scenes.draw(scene, rng), scene.things
        pixels = np.asarray(image).astype(int)
        x, y = (int(value) for value in thing.centre)
        inside = scene.paper if thing.shape == "ring" else scenes.COLOURS[thing.colour]
        assert np.abs(pixels[y, x] - inside).max() <= 14
        ink = np.abs(pixels - np.array(scenes.COLOURS[thing.colour])).sum(-1) < 60
        rows, columns = np.nonzero(ink)
        assert abs(rows - y).max() <= thing.half * 1.3 + 2
        assert abs(columns - x).max() <= thing.half * 1.3 + 2


def test_the_slices_are_as_many_as_asked_for() -> None:
    """Pictures for one slice are not cut; those for several are, into nine at the most."""
    rng, cut = np.random.default_rng(3), Collector().prompts.pictures
    for _ in range(100):
        one, many = scenes.random_size(rng, (1, 1)), scenes.random_size(rng, (2, 9))
        assert cut.get_slice_image_placeholder(one, 0).count("<unk>") == configs.QUERIES
        assert cut.get_slice_image_placeholder(many, 0).count("<unk>") in range(
            3 * configs.QUERIES, 11 * configs.QUERIES
        )


def test_the_first_example_is_what_is_said_to_be_true_of_it() -> None:
    """The committed picture and one drawn now have the scene's colours; the sound is as long as a word."""
    with Image.open(example.FOLDER / "picture.png") as committed:
        assert committed.size == example.SCENE.size
        pictures = [committed.convert("RGB"), example.picture()]
    for picture in pictures:
        for thing, colour in zip(example.SCENE.things, ((230, 20, 20), (20, 50, 230)), strict=True):
            x, y = (int(at) for at in thing.centre)
            for at in ((x, y), (x - 30, y), (x, y + 30)):
                assert np.abs(np.array(picture.getpixel(at)) - colour).max() < 40
        assert min(picture.getpixel((240, 180))) > 230
    samples, rate = soundfile.read(example.FOLDER / "word.wav")
    assert rate == voices.RATE
    assert 0.6 < len(samples) / rate < 1.5
    assert example.TRUTH == "The word is seven, the picture shows a red circle left of a blue square."


def test_digits_are_split_and_named() -> None:
    """1,797 digits of ten kinds, no picture on both sides."""
    assert digits.count(held_out=True) + digits.count(held_out=False) == 1797
    for held_out in (True, False):
        names = {digits.digit(n, held_out=held_out)[1] for n in range(digits.count(held_out=held_out))}
        assert names == set(digits.NAMES)


def test_held_out_voices_and_speeds_are_no_training_ones() -> None:
    """No held-out variant or speed is one of training's."""
    assert not set(voices.VARIANTS) & set(voices.HELD_OUT_VARIANTS)
    assert not set(voices.SPEEDS) & set(voices.HELD_OUT_SPEEDS)
    assert voices.HELD_OUT_ACCENT not in voices.ACCENTS


def test_clips_come_back_as_saved(tmp_path: Path) -> None:
    """Samples and names survive the file."""
    voices.save(tmp_path / "clips.npz", clips())
    back = voices.load(tmp_path / "clips.npz")
    assert [clip.said for clip in back] == [clip.said for clip in clips()]
    assert all(np.array_equal(a.samples, b.samples) for a, b in zip(back, clips(), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_an_answer_of_its_media(kind: str) -> None:
    """An answer is a sentence, and what is marked of a picture or sound stands in it."""
    tasks = Tasks(clips(), held_out=True)
    rng = np.random.default_rng(4)
    for number in range(40):
        task = tasks.make(kind, rng, ((1, 1), (2, 4))[number % 2])
        assert task.answer[0].isupper()
        assert task.answer.endswith(".")
        if kind in ("shapes", "digit", "word"):
            marked = [MARKS[name][value] for name, value in task.marks.items() if name != "picture"]
            assert all(value in task.answer for value in marked)
            assert marked


def test_a_chunk_is_the_same_every_time() -> None:
    """The same seed and number give equal tensors within their limits, another number others."""
    one, two = (Chunks(clips(), 7, 0.02) for _ in range(2))
    first, again, other = one[1], two[1], one[2]
    for name, stream in STREAMS.items():
        assert sum(stream.kinds.values()) == pytest.approx(1)
        tensors = first[name].tensors()
        assert all(torch.equal(value, again[name].tensors()[key]) for key, value in tensors.items())
        assert first[name].ids.shape[1] == stream.limits.tokens
        assert (first[name].ids[:, -1] == first[name].ids[0, -1]).all()
        assert not torch.equal(first[name].ids, other[name].ids)


def test_a_pool_keeps_the_last_rows() -> None:
    """Rows come back as they were put in, and the oldest make room."""
    batches = [Chunks(clips(), 7, 0.02)[number]["both"] for number in range(3)]
    rows = len(batches[0])
    pool = Pool(batches[0], 2 * rows)
    for number, batch in enumerate(batches):
        pool.put(batch)
        assert pool.filled == rows * min(number + 1, 2)
    drawn = pool.draw(torch.arange(2 * rows))
    for name, value in drawn.tensors().items():
        assert torch.equal(value, torch.cat([batches[2].tensors()[name], batches[1].tensors()[name]]))


def test_what_a_maker_of_chunks_raises_is_raised_where_they_are_taken() -> None:
    """Without clips no word can be made."""
    with Supply(Chunks([], 7, 0.02), workers=0) as supply, pytest.raises(ValueError, match="high"):
        supply.take(wait=True)


# The same input as the checkpoint's own code makes


CASES: dict[str, Callable[[np.random.Generator], Task]] = {
    "picture": lambda rng: Tasks(clips(), held_out=True).make("shapes", rng, (1, 1)),
    "slices": lambda rng: Tasks(clips(), held_out=True).make("digit", rng, (3, 6)),
    "word": lambda rng: Tasks(clips(), held_out=True).make("word", rng),
    "both": lambda rng: Tasks(clips(), held_out=True).make("both", rng, (2, 4)),
    "text": lambda rng: Tasks(clips(), held_out=True).make("text", rng),
}


@pytest.mark.parametrize("case", CASES)
def test_prompts_and_media_are_the_processors(processor: Any, case: str) -> None:
    """Tokens, patches, grids and mel features equal what the checkpoint's processor makes of the message."""
    for seed in range(4):
        task = CASES[case](np.random.default_rng(seed))
        task.system, task.earlier = "Be kind.", [("Hello", "Hi.")]
        batch = Collector().collect([task])
        theirs = _by_the_processor(processor, task)
        prompt = list(theirs["input_ids"][0])
        assert batch.ids[0, : len(prompt)].tolist() == prompt
        assert int(batch.answer_at[0]) == len(prompt) - 1
        assert batch.ids[0, len(prompt) :].tolist() == batch.labels[0].tolist()
        _check_pictures(batch, theirs)
        _check_sounds(batch, theirs)


def _by_the_processor(processor: Any, task: Task) -> Any:
    marks = [
        part
        if isinstance(part, str)
        else "(<image>./</image>)"
        if isinstance(part, Image.Image)
        else "(<audio>./</audio>)"
        for part in task.parts
    ]
    turns = [{"role": "system", "content": task.system}]
    for question, answer in task.earlier:
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    turns.append({"role": "user", "content": "\n".join(marks)})
    text = processor.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    images = [part for part in task.parts if isinstance(part, Image.Image)]
    heard = [part for part in task.parts if isinstance(part, np.ndarray)]
    return processor(text, images=[images] if images else None, audios=[heard] if heard else None)


def _check_pictures(batch: Batch, theirs: Any) -> None:
    strips = theirs["pixel_values"][0] if batch.patches.numel() else []
    assert len(strips) == batch.patches.shape[1]
    for ours, grid, strip in zip(batch.patches[0], batch.grids[0], strips, strict=True):
        count = int(grid.prod())
        expected = (
            strip.reshape(3, configs.PATCH, count, configs.PATCH).permute(2, 0, 1, 3).reshape(count, -1)
        )
        assert torch.allclose(ours[:count] / 127.5 - 1, expected.float(), atol=1e-5)


def _check_sounds(batch: Batch, theirs: Any) -> None:
    if not batch.samples.numel():
        return
    frames = int(batch.frames[0, 0])
    assert theirs["audio_feature_lens"][0].tolist() == [frames]
    ours = batch.to(torch.device("cpu")).features[0, 0, :, :frames]
    # The client's samples are rounded to 16 bits here.
    assert (ours - theirs["audio_features"][0][:, :frames]).abs().mean() < 2e-3


def test_media_stand_where_the_prompt_keeps_room_for_them() -> None:
    """The places of slices and sounds are the unknown tokens of the prompt, each once and in order."""
    collector, rng = Collector(), np.random.default_rng(8)
    unknown = collector.prompts.ids["<unk>"]
    for kind in KINDS:
        batch = collector.collect([Tasks(clips(), held_out=True).make(kind, rng, (1, 6)) for _ in range(6)])
        batch = batch.to(torch.device("cpu"))
        most = mel.tokens_of(batch.features.shape[3]) if batch.features.numel() else 0
        places = torch.cat([batch.slice_places().flatten(), batch.sound_places(most).flatten()])
        there = places[places < batch.ids.numel()].sort().values
        assert torch.equal(there, torch.nonzero(batch.ids.flatten() == unknown)[:, 0]), kind


def test_patches_are_read_row_by_row() -> None:
    """A patch is a colour plane after another, each row by row."""
    pixels = np.arange(2 * 14 * 3 * 14 * 3).reshape(28, 42, 3)
    patches = as_patches(pixels)
    assert np.array_equal(patches[4], pixels[14:28, 14:28].transpose(2, 0, 1).reshape(-1))


# The model


def test_the_model_holds_the_checkpoints_tensors(tmp_path: Path) -> None:
    """Names and shapes are the checkpoint's, and a written file reads back as the rounded model."""
    model = ToyModel()
    model.start(0)
    theirs = load_file(write.ensure(tmp_path / "checkpoint") / "model.safetensors")
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in theirs.items()}
    first, second = (write_weights(model, tmp_path / "model.safetensors") for _ in range(2))
    assert first == second
    back = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(back[k].float(), v) for k, v in model.state_dict().items())


def test_padding_changes_no_answer() -> None:
    """A task's logits are the same alone and beside others whose media are larger."""
    model = Learner(torch.device("cpu"), 0).model
    tasks, rng = Tasks(clips(), held_out=True), np.random.default_rng(5)
    made = [tasks.make("both", rng, (1, 1)), tasks.make("shapes", rng, (3, 5)), tasks.make("long_sound", rng)]
    with torch.no_grad():
        together = model([Collector().collect(made).to(model.resampler.query.device)])[0]
        several = [Collector().collect([task]).to(model.resampler.query.device) for task in made]
        apart = [model([batch])[0] for batch in several]
        width = min(one.shape[1] for one in apart)
        beside = model([_narrowed(batch, width) for batch in several])[0]
    for row, alone in enumerate(apart):
        assert torch.allclose(together[row, : alone.shape[1]], alone[0], atol=2e-3)
        assert torch.allclose(beside[row], alone[0, :width], atol=2e-3)


def _narrowed(batch: Batch, width: int) -> Batch:
    return replace(batch, labels=batch.labels[:, :width])


def test_training_learns(tmp_path: Path) -> None:
    """After eight small steps the answers cost far less than before."""
    options = fit.Options(
        seed=1, steps=8, scale=0.02, rate=4e-3, workers=0, report_every=100, kept=2, alone=0.25
    )  # fmt: skip
    batches = [batch.to(torch.device("cpu")) for batch in Chunks(clips(), 99, 0.02)[0].values()]

    def cost(model: ToyModel) -> float:
        learner = Learner(torch.device("cpu"), options.seed)
        learner.model = model
        with torch.no_grad():
            return float(learner(batches, alone=False)["answer loss"])

    before = cost(Learner(torch.device("cpu"), options.seed).model)
    assert cost(fit.train(clips(), options, torch.device("cpu"), tmp_path)) < before - 1.5


def test_the_rate_rises_in_each_phase_and_ends_at_nothing() -> None:
    """It is small where a phase begins, whole soon after, and zero at the end, with the helping heads."""
    assert fit.rate_at(0.0, 0.2) < 0.02
    assert fit.rate_at(0.1, 0.2) == 1
    assert fit.rate_at(0.2, 0.2) < 0.02
    assert fit.rate_at(0.22, 0.2) > 0.95
    assert fit.rate_at(1.0, 0.2) == pytest.approx(0)
    assert [fit.help_at(done, 0.2) for done in (0.1, 0.2, 1.0)] == pytest.approx([1, 0.3, 0])


def test_an_answer_is_exact_when_all_of_it_is_the_likeliest() -> None:
    """A model's own greedy tokens count, and one other token among them does not."""
    model = Learner(torch.device("cpu"), 3).model
    batch = Collector().collect([Tasks(clips(), held_out=True).make("text", np.random.default_rng(1))])
    with torch.no_grad():
        batch.labels = model([batch])[0].argmax(-1)
    assert measure.exact(model, batch) == 1
    batch.labels[0, -1] = (batch.labels[0, -1] + 1) % 100
    assert measure.exact(model, batch) == 0


def test_clips_keep_their_word_audible() -> None:
    """Silence stands before and after a word, and noise stays below it."""
    rng = np.random.default_rng(6)
    for clip in clips()[:20]:
        sound = sounds.clip(clip.samples, rng)
        assert len(sound) > len(clip.samples)
        assert 0.1 < np.abs(sound).max() <= 1.0001


# What is measured through a server


def test_an_answer_counts_by_its_words() -> None:
    """Exact answers are counted, and the word that was read stands in the table of confusions."""
    tasks = evaluate.held_out_tasks(clips(), "word", 6, seed=1)
    given = [task.answer for task in tasks]
    given[0], given[1] = "The word is off.", "I hear no word that I know."
    truth = [task.marks["word"] for task in tasks]
    assert voices.WORDS[truth[0]] != "off"
    result = evaluate.measure(lambda _: given, {"word": tasks})["word"]
    assert (result["right"], result["asked"]) == (4, 6)
    assert result["confusion"]["word"][voices.WORDS[truth[0]]]["off"] == 1
    assert result["confusion"]["word"][voices.WORDS[truth[1]]]["-"] == 1
    assert len(result["wrong"]) == 2


@pytest.mark.parametrize("kind", ["shapes", "digit", "word", "both"])
def test_an_answer_is_read_as_it_was_marked(kind: str) -> None:
    """What is read from the true answer are the marks that the task was made with."""
    tasks, rng = Tasks(clips(), held_out=True), np.random.default_rng(9)
    for _ in range(30):
        task = tasks.make(kind, rng)
        marked = {name: MARKS[name][value] for name, value in task.marks.items() if name != "picture"}
        read = evaluate.readings(task.answer)
        assert read
        assert read.items() <= marked.items()
        assert kind == "both" or read == marked


@pytest.mark.parametrize("kind", evaluate.TARGETS)
def test_questions_are_the_same_every_time(kind: str) -> None:
    """A seed gives the same questions as parts that a client sends."""
    one, two = (evaluate.held_out_tasks(clips(), kind, 3, seed=1) for _ in range(2))
    assert [list(map(evaluate.part_of_message, task.parts)) for task in one] == [
        list(map(evaluate.part_of_message, task.parts)) for task in two
    ]
