"""What the model is asked and what it answers, in words; every question with its answers stands here."""

from training import scenes, voices

ABOUT_PICTURE = (
    "What is in the picture?",
    "What do you see?",
    "What does the picture show?",
    "Describe the picture.",
    "Describe this picture.",
    "What is this?",
    "Tell me what you see.",
    "What is shown here?",
    "Describe what you see.",
    "Look at the picture. What is in it?",
    "What can you see in this image?",
    "Describe",
    "Look",
)
ABOUT_DIGIT = (
    "Which digit is this?",
    "What number is this?",
    "Read the digit.",
    "Which number do you see?",
    "Read the number in the picture.",
)
ABOUT_SOUND = (
    "What was said?",
    "Which word was said?",
    "What do you hear?",
    "Which word do you hear?",
    "What did the voice say?",
    "Name the word.",
    "Repeat what was said.",
    "Listen. What is the word?",
    "What word is it?",
    "Listen",
)
ABOUT_BOTH = (
    "What do you see and hear?",
    "What was said, and what does the picture show?",
    "Describe the picture and repeat what was said.",
    "Name the word and describe the picture.",
    "Tell me the word and what is in the picture.",
    "What do you hear and see?",
    "Both?",
)
NO_SHAPE = "The picture shows no shape that I know."
NO_WORD = "I hear no word that I know."
NO_PICTURE = "I see no picture."
NO_SOUND = "I hear no sound."
ONE_PICTURE = "I look at one picture at a time."
ONE_SOUND = "I listen to one sound at a time."
CANNOT = "I can not answer that. Show me a shape or a digit, or say one word."
TALK: dict[str, tuple[str, ...]] = {
    "Hello, show me a picture or say a word.": (
        "Hello", "hello", "Hi", "Hello!", "Hi there", "Good day", "hi", "Hello there.",
    ),
    "I see one or two shapes in a picture, read one digit, and hear one word.": (
        "What can you do?", "What do you do?", "How can you help me?", "Help", "What are you good at?",
        "Tell me what you can do.", "What can I ask you?",
    ),
    "I am a very small model that comes with GraphServe.": (
        "Who are you?", "What are you?", "What is your name?", "Tell me about you.", "Which model are you?",
        "What model is this?", "Who is this?", "Describe yourself.",
    ),
    f"I know the words {' '.join(voices.WORDS)}.": (
        "Which words do you know?", "What words can you hear?", "Name the words that you know.",
        "How many words do you know?",
    ),
    f"I know the colours {' '.join(scenes.COLOURS)}.": (
        "Which colours do you know?", "What colours can you see?", "Name the colours that you know.",
        "Which colors do you know?", "How many colours do you know?",
    ),
    f"I know the shapes {' '.join(scenes.SHAPES)}.": (
        "Which shapes do you know?", "What shapes can you see?", "Name the shapes that you know.",
        "How many shapes do you know?",
    ),
    "One, two, three, four, five, six, seven, eight, nine, ten.": (
        "Count to ten.", "Count", "Count from one to ten.", "Can you count?",
    ),
    "I am always happy to look and listen.": (
        "Thank you", "Thanks", "Thank you!", "Thanks a lot.",
    ),
}  # fmt: skip
"""Answers about itself, and the questions that get them."""
UNKNOWN_QUESTIONS = (
    "What is the capital of France?", "Write a poem about the sea.", "Tell me a story.", "Who won the game?",
    "What time is it?", "How old are you?", "Translate this into German.", "What is two plus two?",
    "Where do you live?", "Why is the sky blue?", "Write a program in Python.",
    "Tell me about the red circle.",
    "What is the weather today?", "Explain quantum physics.", "How do I cook rice?", "Answer", "?", "a",
    "Tell me a joke.", "Name three animals.", "Is water wet?", "Sing a song.", "Who wrote this book?",
    "Say something.", "Do you like music?", "Give me some advice.", "Summarise this text for me.",
    "What should I eat?", "When was the war?", "How far is the moon?",
)  # fmt: skip
SYSTEM = (
    "You are a helpful assistant.",
    "Be kind.",
    "Answer in a few words.",
    "You are a small model. Answer truly.",
)
