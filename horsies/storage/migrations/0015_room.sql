-- A claim writes a third more into a row than a send: with two fifths of a page filled, all its rows find room beside
-- themselves when they are claimed, and no index has to be told. At 60 that held for half of them, and an exchange took
-- twice as long.
ALTER TABLE horsies_tasks_live SET (fillfactor = 40);
