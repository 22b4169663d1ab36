long answer_of_device();
