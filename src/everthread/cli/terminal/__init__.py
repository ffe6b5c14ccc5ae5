"""The chat view on a full terminal: streamed answers, a permanent input line, a status line.

view: the `ChatView`; print output, collect input, schedule redraws
input_area: the prompt_toolkit application with input, menu and status line
pastes: placeholders for long pastes in the input
resize: erase the input area correctly after a resize
turn_view: render the events of a turn
markdown_stream: split a streamed answer into finished blocks
markdown: render Markdown blocks as styled lines
tables: lay out Markdown tables
highlight: syntax highlighting of code blocks
recap: the panel with the last turns of a resumed session
text: styled text and line wrapping
styles: colours and weights
"""
